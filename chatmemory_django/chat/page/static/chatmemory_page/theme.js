// The colors: light, dark, or as in the system's settings. Not a module: it runs before the page is shown.

(() => {
    const KEY = "chatmemory:theme";
    const apply = theme => { document.documentElement.dataset.theme = theme; };
    apply(localStorage.getItem(KEY) ?? "system");
    document.addEventListener("DOMContentLoaded", () => {
        const choice = document.getElementById("theme");
        if (!choice) return;
        choice.value = document.documentElement.dataset.theme;
        choice.addEventListener("change", () => {
            localStorage.setItem(KEY, choice.value);
            apply(choice.value);
        });
    });
})();
