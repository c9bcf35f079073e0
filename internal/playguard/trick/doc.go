// Package trick runs Compose files as jobs: once now, or by a schedule. What a
// trick does on its marquee is decided and carried out like everything else of
// a playground; here are what people ask for, what an attempt wrote, and the
// clock.
package trick
