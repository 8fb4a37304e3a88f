// On paper nothing can be opened: a report shows everything that is folded before it is printed.
addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
