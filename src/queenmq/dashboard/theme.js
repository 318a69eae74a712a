// Runs before the first paint: a theme that was chosen before wins over the one of the system.
const chosen = localStorage.getItem("queen.theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
