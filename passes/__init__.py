"""The passes, one a file. Each is a frozen dataclass: `TaskGraph -> TaskGraph`."""
