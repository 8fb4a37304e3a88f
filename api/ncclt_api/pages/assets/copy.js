// Gives every [data-copy] button its work. Without this script the lines can still be selected by hand.
function showCopyButtons() {
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
}
showCopyButtons();
document.addEventListener("htmx:load", showCopyButtons);  // a part of the page, or all of it, is new
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  try {
    // Only secure contexts (HTTPS or loopback) have a clipboard.
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});
