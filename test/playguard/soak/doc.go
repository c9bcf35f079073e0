// Package soak breaks a real Docker host at random, for as long as it is told,
// while people change playgrounds on it.
package soak
