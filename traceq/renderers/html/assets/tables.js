// Tables: a click on a heading sorts, a field filters the rows of long ones, a button copies what is shown as Markdown.
"use strict";

const MOST_ROWS_AT_A_GLANCE = 10;

for (const box of document.querySelectorAll("div.table")) {
  const table = box.querySelector("table");
  for (const button of table.querySelectorAll("th button")) button.addEventListener("click", () => sortBy(button.closest("th")));
  const tools = box.querySelector(".tools");
  if (table.tBodies[0].rows.length > MOST_ROWS_AT_A_GLANCE) tools.append(filterField(table, box));
  tools.append(copyButton(table, box));
}

/** Sort by the column: numbers by value, largest first; texts alphabetically. A second time reverses. */
function sortBy(heading) {
  const table = heading.closest("table"), column = heading.cellIndex;
  const isNumber = heading.classList.contains("number");
  const now = heading.getAttribute("aria-sort");
  const ascending = now ? now === "descending" : !isNumber;
  const text = (row) => row.cells[column].textContent;
  const number = (row) => Number(row.cells[column].dataset.value ?? -Infinity); // an empty cell is the least
  const order = (a, b) => isNumber ? number(a) - number(b) || 0 : text(a).localeCompare(text(b));
  const rows = [...table.tBodies[0].rows].sort((a, b) => ascending ? order(a, b) : order(b, a));
  table.tBodies[0].append(...rows);
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
}

function filterField(table, box) {
  const field = document.createElement("input"), count = status(box);
  field.type = "search";
  field.placeholder = `Filter ${table.tBodies[0].rows.length} rows`;
  field.setAttribute("aria-label", `Filter ${box.dataset.title}`);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${table.tBodies[0].rows.length} rows` : "";
  });
  return field;
}

function copyButton(table, box) {
  const button = document.createElement("button"), announcement = status(box);
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy as Markdown";
  button.setAttribute("aria-label", `Copy as Markdown: ${box.dataset.title}`);
  button.addEventListener("click", async () => {
    const copied = await copyText(markdown(table));
    button.textContent = copied ? "Copied" : "Could not copy";
    announcement.textContent = button.textContent;
    setTimeout(() => { button.textContent = "Copy as Markdown"; }, 2000);
  });
  return button;
}

/** A line that screen readers read out when it changes. */
function status(box) {
  const line = document.createElement("span");
  line.className = "unseen";
  line.setAttribute("role", "status");
  box.append(line);
  return line;
}

/** The rows that are shown, in their order, as a Markdown table. */
function markdown(table) {
  const text = (cell) => cell.textContent.trim().replace(/[\\|`*_<]/g, "\\$&").replace(/\s+/g, " ");
  const line = (cells) => `| ${cells.join(" | ")} |`;
  const headings = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  return [line(headings.map(text)), line(headings.map((cell) => cell.classList.contains("number") ? "--:" : "---")),
    ...rows.map((row) => line([...row.cells].map(text)))].join("\n") + "\n";
}

/** Copy to the clipboard; also where a page opened from a file may not use the newer interface. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "unseen";
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
