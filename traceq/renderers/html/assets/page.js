// Draw every figure, and make everything with `data-goto` a button that leads into the timeline.
"use strict";

// Contents lie beside a wide page; on a narrow one they open by a click, and lead away when one is chosen.
const isWide = matchMedia("(min-width: 1200px)");
for (const list of document.querySelectorAll(".contents details")) {
  const fit = () => { list.open = isWide.matches; };
  fit();
  isWide.addEventListener("change", fit);
  list.addEventListener("click", (event) => { if (event.target.matches("a")) fit(); });
}

for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  charts[figure.dataset.chart](figure, data);
}

for (const place of document.querySelectorAll("[data-goto]")) {
  const go = () => document.dispatchEvent(
    new CustomEvent("traceq:goto", { detail: { ...JSON.parse(place.dataset.goto), from: place } }));
  place.tabIndex = 0;
  place.setAttribute("role", "button");
  place.title = "Show in the timeline";
  place.addEventListener("click", go);
  place.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    go();
  });
}
