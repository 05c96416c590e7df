(() => {
  // A cell's last number, so that of "before → after" what is after; else null.
  function number(cell) {
    const text = cell.firstChild?.nodeType === Node.TEXT_NODE ? cell.firstChild.textContent : "";
    const found = text.match(/-?\d+(\.\d+)?(e[-+]?\d+)?/g);
    return found ? Number(found.at(-1)) : null;
  }

  // Of two rows by a column: numbers from the largest on, texts from a on, what is missing last.
  function compare(a, b, column, up) {
    const [x, y] = [a, b].map((row) => number(row.cells[column]));
    if (x !== null && y !== null) return up ? x - y : y - x;
    if (x !== y) return x === null ? 1 : -1;
    const order = a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true });
    return up ? -order : order;
  }

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], written = [...body.rows];
    if (written.length < 2) return;
    // A column's first click sorts, the second turns it round, the third puts the rows as they were.
    function sort(column) {
      const next = { descending: "ascending", ascending: "none" }[heads[column].ariaSort] ?? "descending";
      heads.forEach((head, i) => (head.ariaSort = i === column ? next : "none"));
      const rows = next === "none" ? written : [...written].sort((a, b) => compare(a, b, column, next === "ascending"));
      body.replaceChildren(...rows);
    }
    heads.forEach((head, column) => {
      head.tabIndex = 0;
      head.className = "sorts";
      head.title = "sort by this column";
      head.addEventListener("click", () => sort(column));
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort(column));
    });
  }

  // The columns and rows of a legend's entry.
  function show(label, on) {
    for (const head of document.querySelectorAll(`th[data-group="${CSS.escape(label)}"]`)) {
      const row = head.parentElement;
      if (row.parentElement.tagName === "TBODY") row.hidden = !on;
      else for (const other of head.closest("table").rows) other.cells[head.cellIndex].hidden = !on;
    }
  }

  document.querySelectorAll("main table").forEach(sortable);
  for (const button of document.querySelectorAll(".legend button"))
    button.addEventListener("click", () => show(button.dataset.label, button.getAttribute("aria-pressed") === "true"));
})();
