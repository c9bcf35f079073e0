package postgres

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusevm/fuse/internal/fleet"
)

// badAddress is the error of an address that cannot be read. It shows nothing of
// the address: pgx masks the passwords that it recognizes, and in an address
// that it cannot parse it need not recognize them (one with an @ that is not
// escaped is cut at that @). Of pgx's own words it keeps those that are fixed.
func badAddress(err error) error {
	e := fleet.Errorf(fleet.CodeInvalidArgument, "DATABASE_URL cannot be read%s", parseProblem(err)).
		With(fleet.DetailRemedy, "write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE, every character of the password "+
			"that is no letter or digit as % and two hex digits")
	return e
}

func parseProblem(err error) string {
	var bad *pgconn.ParseConfigError
	if !errors.As(err, &bad) {
		return ""
	}
	var missing *fs.PathError // a certificate or password file
	if errors.As(bad.Unwrap(), &missing) {
		return ": " + missing.Error()
	}
	for _, known := range []string{
		"invalid port", "sslmode is invalid", "failed to configure TLS", "unexpected spaces found in password",
		"invalid percent-encoded token", "IPv6", "invalid connect_timeout", "pool_max_conns", "failed to parse as URL",
		"failed to parse as keyword/value",
	} {
		// Only words that the address itself cannot have brought along.
		if strings.Contains(err.Error(), known) && !strings.Contains(bad.ConnString, known) {
			return ": " + known
		}
	}
	return ""
}
