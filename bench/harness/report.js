"use strict";
// What a mark says when it is pointed at, and the choice between the light and the dark page.
const tip = document.getElementById("tip");
addEventListener("pointermove", (event) => {
  const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
  tip.style.opacity = mark ? 1 : 0;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const y = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18;
  tip.style.transform = `translate(${Math.max(4, x)}px, ${y}px)`;
});
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
