// The choice of colors: light, dark, or as in the system's settings. theme.js applies it before the page is shown.

const {dataset} = document.documentElement;

/** Let people choose in the field *choice*. */
export function offerColors(choice) {
    choice.value = dataset.theme;
    choice.addEventListener("change", () => {
        localStorage.setItem("chatmemory:theme", choice.value);
        dataset.theme = choice.value;
    });
}
