// Package newuser does what somebody does who has read docs/operate/playground.md
// and nothing else: the program from the command line, a real SSH server and a
// real Docker daemon.
package newuser
