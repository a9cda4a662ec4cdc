"""The first hour: `agentest init` writes a project, `agentest doctor` looks at one."""
