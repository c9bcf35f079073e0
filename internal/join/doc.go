// Package join lets hosts register themselves: it makes and keeps join tokens,
// and takes in hosts that prove one. Neither side sends the token; see
// internal/hostwire/joinwire for what is said.
package join
