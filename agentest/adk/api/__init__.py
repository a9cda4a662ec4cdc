"""ADK's Python entry points: AgentEvaluator and LocalEvalService."""
