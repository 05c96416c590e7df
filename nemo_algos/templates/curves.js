(() => {
  const slider = byId("smoothing");
  const plots = [...document.querySelectorAll("svg[data-plot]")].map((svg) => ({ svg, ...JSON.parse(svg.dataset.plot) }));
  const off = new Set();  // labels of the runs that are switched off

  // Of an axis [from, to, its ends in the SVG, logarithmic].
  const along = (axis, v) => (axis[4] ? Math.log(v) : v);
  function at(axis, v) {
    const [low, high, value] = [axis[0], axis[1], v].map((x) => along(axis, x));
    return axis[2] + ((value - low) / (high - low)) * (axis[3] - axis[2]);
  }

  // As running_mean of figure.py: over the finite of the `width` values around each.
  function smoothed(values, width) {
    if (width <= 1) return values;
    return values.map((_, i) => {
      const near = values.slice(Math.max(0, i - (width >> 1)), i + ((width - 1) >> 1) + 1).filter((v) => v !== null);
      return near.length ? near.reduce((sum, v) => sum + v, 0) / near.length : null;
    });
  }

  function through(plot, xs, ys) {
    let pen = "M";
    return xs.map((x, i) => {
      if (ys[i] === null || (plot.y[4] && ys[i] <= 0)) return (pen = "M"), "";
      const step = `${pen}${at(plot.x, x).toFixed(2)} ${at(plot.y, ys[i]).toFixed(2)}`;
      pen = "L";
      return step;
    }).join("");
  }

  const part = (plot, i, name) => byId(`${plot.name}.${i}.${name}`);

  // matplotlib's band is replaced by a path of our own, in the clip of the line.
  function band(plot, i, line, d) {
    const group = part(plot, i, "band");
    if (!group) return;
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", d);
    path.setAttribute("style", `fill: ${line.color}; fill-opacity: .14`);
    path.setAttribute("clip-path", part(plot, i, "mean").querySelector("path").getAttribute("clip-path"));
    group.replaceChildren(path);
  }

  function redraw(plot) {
    plot.lines.forEach((line, i) => {
      if (!line.smooth) return;
      const width = Math.floor((line.x.length * slider.value) / 100);
      line.mean = smoothed(line.y, width);
      part(plot, i, "mean").querySelector("path").setAttribute("d", through(plot, line.x, line.mean));
      const [low, high] = [line.low, line.high].map((values) => smoothed(values, width));
      if (low.includes(null) || high.includes(null)) return;
      band(plot, i, line, `${through(plot, line.x, low)}L${through(plot, [...line.x].reverse(), [...high].reverse()).slice(1)}Z`);
    });
  }

  function toggle(button) {
    const { label } = button.dataset;
    off.delete(label) || off.add(label);
    button.setAttribute("aria-pressed", !off.has(label));
    for (const plot of plots) plot.lines.forEach((line, i) => {
      const parts = plot.svg.querySelectorAll(`[id^="${CSS.escape(`${plot.name}.${i}.`)}"]`);
      if (line.label === label) parts.forEach((g) => (g.style.display = off.has(label) ? "none" : ""));
    });
  }

  const written = (v) => (v === null ? "not finite" : String(Number(v.toPrecision(4))));

  // A hairline at this x in every figure over the same axis; none without a figure.
  function mark(over, x) {
    for (const plot of plots) {
      plot.hair ??= plot.svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
      const place = over?.of === plot.of && plot.x[0] <= x && x <= plot.x[1] ? at(plot.x, x).toFixed(2) : "";
      plot.hair.setAttribute("class", "hair");
      plot.hair.setAttribute("d", place && `M${place} ${plot.y[2]}V${plot.y[3]}`);
    }
  }

  function leave() {
    byId("tip").hidden = true;
    mark(null);
  }

  // The values at the x that is nearest to the pointer, of the runs that are on.
  function hover(plot, event) {
    const shown = plot.lines.filter((line) => !off.has(line.label) && line.x.length);
    const pointer = new DOMPoint(event.clientX, event.clientY).matrixTransform(plot.svg.getScreenCTM().inverse());
    const apart = (line, i) => Math.abs(at(plot.x, line.x[i]) - pointer.x);
    const nearest = (line) => line.x.reduce((best, _, i) => (apart(line, i) < apart(line, best) ? i : best), 0);
    const found = shown.map((line) => [line, nearest(line)]);
    if (!found.length) return;
    const [first, i] = found.reduce((a, b) => (apart(...b) < apart(...a) ? b : a));
    mark(plot, first.x[i]);
    const title = plot.ticks.length ? plot.ticks[Math.round(first.x[i])] : first.x[i];
    tell({ left: event.clientX + 14, bottom: event.clientY + 8, top: event.clientY - 8 }, element("caption", {}, title),
      ...found.filter(([line, j]) => Math.abs(at(plot.x, line.x[j]) - at(plot.x, first.x[i])) < 30).map(row));
  }

  function row([line, i]) {
    const about = [
      line.mean && line.mean[i] !== line.y[i] ? `here ${written(line.y[i])}` : "",
      line.low.length ? `${written(line.low[i])} to ${written(line.high[i])}` : "",
    ].filter(Boolean).join(", ");
    const name = [element("i", { class: "chip", run: line.color }), line.label];
    const values = [written((line.mean ?? line.y)[i]), about];
    return element("tr", {}, element("th", {}, ...name), ...values.map((value) => element("td", {}, value)));
  }

  for (const plot of plots) {
    plot.svg.addEventListener("pointermove", (event) => hover(plot, event));
    plot.svg.addEventListener("pointerleave", leave);
  }
  for (const button of document.querySelectorAll(".legend button")) button.addEventListener("click", () => toggle(button));
  const smooth = () => {
    byId("smoothing-share").textContent = `${slider.value} % of the steps`;
    plots.forEach(redraw);
  };
  slider?.addEventListener("input", smooth);
  if (slider) smooth();
})();
