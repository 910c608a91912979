// Draw every figure, and make everything with `data-goto` a button that leads into the timeline.
"use strict";

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
