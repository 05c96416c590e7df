(() => {
  const { runs, scales } = data("heat-data");
  if (!runs.length) return;
  const selects = ["run", "step", "prompt", "response"].map((id) => byId(`heat-${id}`));
  const [inRun, inStep, inPrompt, inResponse] = selects;
  const buttons = [...byId("heat-color").querySelectorAll("button")];
  let by = "ratio", step = 0;  // a step stays chosen from run to run

  const at = (column, i) => (Array.isArray(column) ? column[i] : column);

  // -1 to 1 of the scale: 0 is the paper's colour. NaN and infinities have no colour.
  function share(value) {
    const x = parseFloat(value);
    const along = by === "ratio" ? Math.log(x) : x;
    return Number.isFinite(along) ? Math.max(-1, Math.min(1, along / scales[by])) : null;
  }

  function color(s) {
    const hue = s < 0 || by === "entropy" ? "--low" : "--high";
    return `color-mix(in srgb, var(${hue}) ${Math.round(Math.abs(s) * 90)}%, var(--paper))`;
  }

  function paint(node, value) {
    const s = share(value);
    if (s === null) return node.classList.add("nan");
    node.style.background = color(s);
    if (s < -0.85 || (by === "entropy" && s > 0.85)) node.style.color = "#fff";
  }

  function token(response, i) {
    const side = sideOf(response, i), text = response.tokens[i];
    const visible = text.replaceAll("\n", "⏎") || "∅";
    const node = element("span", { class: "token", tabindex: -1 }, visible, side);
    if (response.cut[i]) node.classList.add("cut");
    paint(node, at(response[by], i));
    node.addEventListener("mouseenter", () => tip(node, response, i));
    node.addEventListener("mouseleave", () => (byId("tip").hidden = true));
    return node;
  }

  // ▲ or ▼ for a token that clipping cuts.
  function sideOf(response, i) {
    if (!response.cut[i]) return "";
    return parseFloat(at(response.ratio, i)) > 1 ? "▲" : "▼";
  }

  function tip(node, response, i) {
    const bounds = response.low === null ? "none" : `${at(response.low, i)} to ${at(response.high, i)}`;
    const side = { "": "no", "▲": "yes, above", "▼": "yes, below" }[sideOf(response, i)];
    const rows = {
      token: JSON.stringify(response.tokens[i]), position: `${i + 1} of ${response.tokens.length}`,
      entropy: response.entropy === null ? "not known" : `${at(response.entropy, i)} nats`, ratio: at(response.ratio, i), bounds,
      advantage: at(response.advantage, i), "gradient cut": side,
    };
    const lines = Object.entries(rows).map(([name, value]) =>
      element("tr", {}, element("th", {}, name), element("td", {}, value)));
    tell(node.getBoundingClientRect(), ...lines);
  }

  function traced(response, i) {
    const cut = response.cut.filter(Boolean).length;
    const label = element("div", {}, `${i + 1}. `, element("b", {}, `reward ${response.reward}`),
      cut ? `, ${cut} of ${response.cut.length} cut` : "");
    const after = (text) => element(text.includes("\n") ? "br" : "wbr");
    const tokens = response.tokens.flatMap((text, t) => [token(response, t), after(text)]);
    return element("div", { class: "traced" }, label, element("div", { class: "tokens" }, ...tokens));
  }

  function scale() {
    const ends = by === "ratio" ? [Math.exp(-scales.ratio), Math.exp(scales.ratio)]
      : [by === "entropy" ? 0 : -scales[by], scales[by]];
    const stops = by === "entropy" ? [0, 0.5, 1] : [-1, -0.5, 0, 0.5, 1];
    const bar = element("i");
    bar.style.background = `linear-gradient(to right, ${stops.map(color)})`;
    byId("heat-scale").replaceChildren(ends[0].toPrecision(2), bar, `${ends[1].toPrecision(2)}${by === "entropy" ? " nats" : ""}`);
  }

  const cuts = (responses) => responses.flatMap((r) => r.cut).filter(Boolean).length;
  const named = (name, number) => (number ? `${name} (${number} cut)` : name);

  // Where most tokens are cut, as that is what one looks for; else the last step.
  function most() {
    let best = { number: 0, run: 0, step: runs[0].steps.length - 1, prompt: 0 };
    runs.forEach((r, run) => r.steps.forEach((s, step) => s.prompts.forEach((p, prompt) => {
      const number = cuts(p.responses);
      if (number > best.number) best = { number, run, step, prompt };
    })));
    return best;
  }

  const steps = () => runs[inRun.value].steps;
  const prompts = () => steps()[inStep.value].prompts;
  const responses = () => prompts()[inPrompt.value].responses;

  // Fill each list from what is chosen before it; a choice stays where it still can.
  function refill() {
    const [promptWas, responseWas] = [inPrompt, inResponse].map((s) => Number(s.value));
    const inOne = (s) => cuts(s.prompts.flatMap((p) => p.responses));
    options(inStep, steps().map((s) => named(s.step, inOne(s))), steps().findIndex((s) => s.step === step));
    options(inPrompt, prompts().map((p) => named(p.prompt.slice(0, 60), cuts(p.responses))), promptWas);
    options(inResponse, ["all", ...responses().map((r, i) => `${i + 1} (reward ${r.reward})`)], responseWas);
    draw();
  }

  function draw() {
    const chosen = inResponse.value - 1;
    const rows = responses().map((r, i) => (chosen < 0 || chosen === i ? traced(r, i) : ""));
    const prompt = element("div", { class: "text prompt" }, prompts()[inPrompt.value].prompt);
    byId("heat").replaceChildren(prompt, ...rows.filter(Boolean));
    for (const button of buttons) button.setAttribute("aria-checked", button.dataset.by === by);
    byId("tip").hidden = true;
    scale();
  }

  const first = most();
  options(inRun, runs.map((r) => r.label), first.run);
  step = steps()[first.step].step;
  options(inPrompt, runs[first.run].steps[first.step].prompts.map((p) => p.prompt), first.prompt);
  inStep.addEventListener("change", () => (step = steps()[inStep.value].step));
  for (const select of selects) select.addEventListener("change", refill);
  for (const button of buttons) button.addEventListener("click", () => { by = button.dataset.by; draw(); });
  addEventListener("scroll", () => (byId("tip").hidden = true), { passive: true });
  refill();
})();
