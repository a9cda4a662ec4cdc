"""Servers for an agent: MCP and HTTP mocks, traces, and the gateway to its model."""

from agentest.plugin import Plugin

plugin = Plugin("servers")
plugin.call_source(
    "servers",
    "agentest.plugins.servers.start:open_servers",
    worker="agentest.plugins.servers.worker_calls:open_proxied_servers",
    tools="agentest.plugins.servers.served_tools:tools_of_servers",
)
plugin.command(
    "mock-server",
    "agentest.plugins.servers.command:mock_server",
    section="Write tests",
    after="record-tools",
    help="Serve mocks over stdio; store a real server's tool list.",
)
