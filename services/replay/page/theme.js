// The colours that were chosen here before, set before anything is drawn. Without a choice the system decides.
(() => {
  try {
    const chosen = localStorage.getItem("headrace-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // no storage: the system decides
  }
})();
