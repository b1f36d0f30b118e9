"""How a kernel runs a problem: configurations, which of them are legal, which one a model or a measurement picks."""
