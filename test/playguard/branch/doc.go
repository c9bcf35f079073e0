// Package branch follows branches of real git repositories through the command
// line, on a real Docker host behind SSH.
package branch
