// A click on a heading sorts its table: numbers by value, largest first; texts alphabetically. A second click reverses.
"use strict";
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const table = heading.closest("table");
    const column = heading.cellIndex;
    const isNumber = heading.classList.contains("number");
    const now = heading.getAttribute("aria-sort");
    const ascending = now ? now === "descending" : !isNumber;
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const order = (a, b) => isNumber
      ? (key(a) === "" ? -Infinity : Number(key(a))) - (key(b) === "" ? -Infinity : Number(key(b)))
      : key(a).localeCompare(key(b));
    const rows = [...table.tBodies[0].rows].sort((a, b) => ascending ? order(a, b) : order(b, a));
    table.tBodies[0].append(...rows);
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  });
}
