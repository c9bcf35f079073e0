// Package e2e runs the binaries as users and init systems do: from the command
// line, with real machines, and with kill -9.
package e2e
