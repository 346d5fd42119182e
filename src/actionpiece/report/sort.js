
// Headings become buttons; without this script the table is simply not sortable.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.querySelectorAll("th[data-column]")];
  const valueOf = (row, column) => {
    const value = row.cells[column].dataset.value;
    return value === undefined || column === 0 ? value : Number(value);
  };
  const sort = (head) => {
    const opposite = { ascending: "descending", descending: "ascending" };
    const order = opposite[head.getAttribute("aria-sort")] || head.dataset.first;
    const column = Number(head.dataset.column);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].sort((first, second) => {
      const a = valueOf(first, column);
      const b = valueOf(second, column);
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined); // missing ones stay last
      return sign * (column === 0 ? a.localeCompare(b) : a - b);
    });
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    body.append(...rows);
  };
  for (const head of heads) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head));
    head.append(button);
  }
}
for (const element of document.querySelectorAll(".needs-script")) element.hidden = false;
