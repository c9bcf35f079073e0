// Package compose turns a person's compose file into the one that goes to a
// marquee: checked, with every variable filled in, and with the labels by
// which Playguard knows what is its own. It reads nothing but its input.
package compose
