// Gives every [data-copy] button its work. Without this script the lines can still be selected by hand.
for (const button of document.querySelectorAll("[data-copy]")) {
  const code = button.parentElement.querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
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
}
