"""What can be removed from a network: the channel graph, and the plan that says what stays."""
