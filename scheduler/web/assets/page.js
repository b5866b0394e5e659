// What pages do with script: copy a command, and stay as they are under a hand. Everything else works without it.
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  navigator.clipboard.writeText(button.dataset.copy).then(() => {
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  });
});
// What somebody writes a decision about does not change while they write: the page says that there is news.
document.addEventListener("htmx:before:request", (event) => {
  const main = document.getElementById("main");
  const written = main.querySelectorAll('form[method="post"] textarea');
  if (event.target !== main || ![...written].some((one) => one.value !== one.defaultValue)) return;
  event.preventDefault();
  document.getElementById("changed").hidden = false;
});
