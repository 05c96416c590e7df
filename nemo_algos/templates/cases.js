(() => {
  const { runs, benchmarks } = data("case-data");
  if (!benchmarks.length) return;
  const [where, filter, search] = ["benchmark", "filter", "search"].map((id) => byId(`case-${id}`));
  const verdicts = { right: "✓ right", wrong: "✗ wrong" };
  let matches = [], place = 0;

  const KEEPS = {
    all: () => true,
    differ: () => true,
    right: (r) => r.verdict === "right",
    wrong: (r) => r.verdict === "wrong",
    unjudged: (r) => !(r.verdict in verdicts),
    cut: (r) => r.cut,
  };
  const has = (text, sought) => text.toLowerCase().includes(sought);
  const differ = (problem) => {
    const shares = problem.runs.filter((r) => r.of).map((r) => r.right / r.of);
    return Math.max(...shares) > Math.min(...shares);
  };

  // A problem with the responses that are wanted, or null where there are none.
  function matched(problem, sought) {
    if (filter.value === "differ" && !differ(problem)) return null;
    const all = !sought || [problem.id, problem.prompt, problem.answer].some((t) => has(t, sought));
    const wanted = (r) => KEEPS[filter.value](r) && (all || has(r.text, sought) || has(r.answer, sought));
    const shown = problem.runs.map((run) => run.responses.filter(wanted));
    return shown.some((responses) => responses.length) ? { problem, shown } : null;
  }

  function find() {
    const sought = search.value.toLowerCase();
    matches = benchmarks[where.value].problems.map((p) => matched(p, sought)).filter(Boolean);
    byId("case-note").textContent = benchmarks[where.value].note;
    go(0);
  }

  function go(to) {
    place = Math.max(0, Math.min(to, matches.length - 1));
    byId("case-place").textContent = matches.length ? `${place + 1} of ${matches.length}` : "none";
    byId("case-previous").disabled = place === 0;
    byId("case-next").disabled = place >= matches.length - 1;
    byId("case").replaceChildren(...(matches.length ? drawn(matches[place]) : []));
  }

  function drawn({ problem, shown }) {
    const facts = [fact("gold", problem.answer), ...Object.entries(problem.info).map((f) => fact(...f))];
    const columns = runs.map((run, i) => column(run, problem.runs[i], shown[i]));
    return [
      element("h3", {}, problem.id),
      element("div", { class: "text prompt" }, ...marked(problem.prompt)),
      element("div", { class: "facts" }, ...facts),
      element("div", { class: "columns" }, ...columns.filter(Boolean)),
    ];
  }

  const fact = (name, value) => element("span", {}, `${name} `, element("b", {}, value));

  function column(run, { right, of }, responses) {
    if (!of) return null;
    const title = element("h4", { run: run.color }, `${run.label}: ${right} of ${of} right`);
    return element("div", { run: run.color }, title, ...responses.map(response));
  }

  function response(r) {
    const kind = r.verdict in verdicts ? r.verdict : "unjudged";
    const said = [
      element("span", { class: `verdict ${kind}` }, verdicts[r.verdict] ?? `? ${r.verdict}`),
      r.answer && element("span", {}, "answer ", element("b", {}, r.answer)),
      r.reward === "0" || r.reward === "1" ? "" : element("span", {}, `reward ${r.reward}`),
      r.tokens && element("span", {}, `${r.tokens} tokens${r.cut ? ", cut" : ""}`),
      element("span", {}, `#${r.sample}`),
      r.detail && element("span", {}, r.detail),
    ];
    const text = element("div", { class: "text" }, ...marked(r.text));
    return element("div", { class: "response" }, element("p", {}, ...said), text);
  }

  // The text with what is sought marked in it.
  function marked(text) {
    const sought = search.value.toLowerCase(), out = [];
    let from = 0, at;
    while (sought && out.length < 200 && (at = text.toLowerCase().indexOf(sought, from)) >= 0) {
      out.push(text.slice(from, at), element("mark", {}, text.slice(at, at + sought.length)));
      from = at + sought.length;
    }
    return [...out, text.slice(from)];
  }

  options(where, benchmarks.map((b) => b.name));
  where.addEventListener("change", find);
  filter.addEventListener("change", find);
  search.addEventListener("input", find);
  byId("case-previous").addEventListener("click", () => go(place - 1));
  byId("case-next").addEventListener("click", () => go(place + 1));
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const plain = !event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey;
    if (step && plain && !event.target.closest("input, select, #tokens, .wide")) go(place + step);
  });
  find();
})();
