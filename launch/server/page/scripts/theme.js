// Runs before the page is drawn, so that it never flashes in the wrong colours. Not a module for that reason.
(() => {
  const THEMES = ["system", "light", "dark"];
  const NAMES = { system: "as the system", light: "light", dark: "dark" };
  const ICONS = { system: "◐", light: "○", dark: "●" };
  const read = () => {
    try { return localStorage.getItem("lookahead-theme"); } catch { return null; }
  };
  let theme = THEMES.includes(read()) ? read() : "system";

  const show = () => {
    document.documentElement.dataset.theme = theme;
    const name = document.getElementById("theme-name");
    if (!name) return;
    name.textContent = `Colours: ${NAMES[theme]}`;
    document.getElementById("theme-icon").textContent = ICONS[theme];
    document.getElementById("theme").title = name.textContent;
  };
  show();
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      try { localStorage.setItem("lookahead-theme", theme); } catch { /* for this visit only */ }
      show();
    });
  });
})();
