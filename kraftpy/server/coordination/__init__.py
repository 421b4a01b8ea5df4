"""The coordinators at this broker, and how requests get to those of other brokers."""
