"""From a request (override strings, a mapping, typed options) to one checked `Config`."""
