const test = require("node:test");
const assert = require("node:assert");
const { total } = require("./price.js");

test("an empty cart costs nothing", () => {
  assert.strictEqual(total([]), 0);
});

test("quantities count", () => {
  const items = [
    { price: 10, quantity: 3 },
    { price: 5, quantity: 2 },
  ];
  assert.strictEqual(total(items), 40);
});
