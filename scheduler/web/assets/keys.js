// Keys of the pages of a run: j and k, the next and the previous step; l and h, the next and the previous problem.
// A page says what there is: links with data-key, or a list with data-steps. Nothing here knows an address.
(() => {
  const busy = (event) =>
    event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented ||
    event.target.closest("input, textarea, select, [contenteditable]");

  const list = () => document.querySelector("[data-steps]");
  const items = () => Array.from(list().querySelectorAll("[data-step]"));

  const current = () => {
    const inside = document.activeElement && document.activeElement.closest("[data-step]");
    if (inside) return inside;
    const named = location.hash.startsWith("#step-") && document.getElementById(location.hash.slice(1));
    return list().querySelector("[data-step].selected") || named || null;
  };

  const select = (item) => {
    for (const one of items()) one.classList.toggle("selected", one === item);
    item.querySelector("summary").focus();
    item.scrollIntoView({ block: "nearest" });
  };

  const follow = (selector, end) => {
    const link = document.querySelector(selector);
    if (link) location.assign(link.href + (link.href.includes("#") ? "" : end));
  };

  const moveTo = (found, at, step, elsewhere, end) => {
    const next = step > 0 ? found.find((one) => one.n > at) : found.filter((one) => one.n < at).pop();
    if (next) select(next.item);
    else follow(elsewhere, end);
  };

  const inList = (key) => {
    const all = items().map((item, n) => ({ item, n }));
    const problems = all.filter((one) => "problem" in one.item.dataset);
    const here = current();
    const at = here ? items().indexOf(here) : -1;
    if (key === "j") moveTo(all, at, 1, ".pager a[rel=next]", "#first");
    if (key === "k") moveTo(all, at < 0 ? all.length : at, -1, ".pager a[rel=prev]", "#last");
    if (key === "l") moveTo(problems, at, 1, "a[data-after]", "");
    if (key === "h") moveTo(problems, at < 0 ? all.length : at, -1, "a[data-before]", "");
  };

  document.addEventListener("keydown", (event) => {
    if (!["j", "k", "h", "l"].includes(event.key) || busy(event)) return;
    const link = document.querySelector(`a[data-key="${event.key}"]`);
    if (link) {
      event.preventDefault();
      location.assign(link.href);
    } else if (list()) {
      event.preventDefault();
      inList(event.key);
    }
  });

  // Where a key led to another page of the list, the step that is meant is chosen. Only once the page has loaded: as a
  // browser goes to the place that an address names, it takes the focus away.
  const arrive = () => {
    if (!list() || !location.hash) return;
    const all = items();
    const ends = { "#first": all[0], "#last": all[all.length - 1] };
    const item = ends[location.hash] || (location.hash.startsWith("#step-") && current());
    if (item) select(item);
  };
  addEventListener("load", () => setTimeout(arrive));
})();

// Keys of reviews, on pages with data-keys="review": in a list j and k choose a row, and Enter opens it; on the page of
// a patch j and k lead to the next and the one before, c to the comment, and a or r, pressed twice, approve or reject.
(() => {
  const area = () => document.querySelector('[data-keys="review"]');
  const form = () => document.querySelector("form[data-decide]");
  const writing = (event) => event.target.closest("input, textarea, select, [contenteditable]");
  let armed = null;
  let timer = 0;

  const say = (text) => {
    const told = form() && form().querySelector("[data-told]");
    if (told) told.textContent = text;
  };

  const disarm = () => {
    clearTimeout(timer);
    if (armed) {
      armed.classList.remove("armed");
      say("");
    }
    armed = null;
  };

  // One slip decides nothing: the same key has to be let go of, and pressed again while the page says so.
  const decide = (key) => {
    const button = form() && form().querySelector(`button[data-key="${key}"]`);
    if (!button) return;
    if (armed === button) {
      disarm();
      button.click();
      return;
    }
    disarm();
    armed = button;
    button.classList.add("armed");
    say(`Press ${key} once more to ${button.textContent.trim().toLowerCase()}, any other key to leave it.`);
    form().scrollIntoView({ block: "nearest" });
    timer = setTimeout(disarm, 5000);
  };

  const choose = (step) => {
    const rows = Array.from(area().querySelectorAll("[data-key-item]"));
    if (!rows.length) {
      const link = area().querySelector(step > 0 ? "a[rel=next]" : "a[rel=prev]");
      if (link) location.assign(link.href);
      return;
    }
    const at = rows.findIndex((row) => row.classList.contains("selected"));
    const to = Math.min(rows.length - 1, Math.max(0, at + step));
    rows.forEach((row, n) => row.classList.toggle("selected", n === to));
    rows[to].querySelector("a").focus();
    rows[to].scrollIntoView({ block: "nearest" });
  };

  document.addEventListener("keydown", (event) => {
    if (!area() || event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
    if (writing(event)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "a" || event.key === "r") {
      event.preventDefault();
      decide(event.key);
      return;
    }
    disarm();
    const comment = form() && form().querySelector('[data-key="c"]');
    if (event.key === "j" || event.key === "k") {
      event.preventDefault();
      choose(event.key === "j" ? 1 : -1);
    } else if (event.key === "c" && comment) {
      event.preventDefault();
      comment.focus();
    }
  });
})();
