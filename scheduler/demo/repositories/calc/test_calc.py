import unittest

from calc import mean


class MeanTest(unittest.TestCase):
    def test_values(self) -> None:
        self.assertEqual(mean([1.0, 2.0, 6.0]), 3.0)

    def test_no_values(self) -> None:
        self.assertEqual(mean([]), 0.0)


if __name__ == "__main__":
    unittest.main()
