// Package guestops runs commands inside environments. It refuses what cannot
// run before it asks a host, tells a command that failed from a command that
// could not be run, and remembers when each environment was last used.
package guestops
