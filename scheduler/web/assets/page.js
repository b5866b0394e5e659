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
// What somebody writes is not lost without a word. The page does not change under it, and says that there is news; where
// a key, a link or a closed tab would leave it behind, the browser asks first. What is being sent is not left behind.
const unsent = (form) =>
  [...document.querySelectorAll('form[method="post"] textarea')].some(
    (one) => one.form !== form && one.value !== one.defaultValue);
const stay = (event) => {
  if (event.target !== document.getElementById("main") || !unsent(null)) return;
  event.preventDefault();
  document.getElementById("changed").hidden = false;
};
document.addEventListener("htmx:before:request", stay);
document.addEventListener("htmx:before:swap", stay);  // it may have begun before the first letter
let sent = null;
document.addEventListener("submit", (event) => { sent = event.target; });
addEventListener("beforeunload", (event) => {
  if (unsent(sent)) event.preventDefault();
  sent = null;
});
