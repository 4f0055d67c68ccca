"""What stands behind `report`: the values, and their way to the agent."""
