import unittest

from clock import minutes


class MinutesTest(unittest.TestCase):
    def test_hours_and_minutes(self) -> None:
        self.assertEqual(minutes("1h30m"), 90)


if __name__ == "__main__":
    unittest.main()
