// The colors: light, dark, or as in the system's settings. Not a module: it runs before the page is shown.

document.documentElement.dataset.theme = localStorage.getItem("chatmemory:theme") ?? "system";
