"""The only input and output: transport, clock, timers, and the driver that performs effects."""
