"""Small tasks on which a skill can be measured: an environment, agents that work by a skill, recorded episodes."""
