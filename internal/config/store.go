package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/uid"
)

// Kinds of state stores.
const (
	StoreSQLite   = "sqlite"
	StorePostgres = "postgres"
	StoreMemory   = "memory"
)

func storeKind(s *Server, v string) error {
	switch v {
	case "", StoreSQLite, StorePostgres, StoreMemory:
		s.Store = v
		return nil
	}
	return fmt.Errorf("%q is neither %s, %s nor %s", v, StoreSQLite, StorePostgres, StoreMemory)
}

func fleetID(s *Server, v string) error {
	if v != "" && !uid.Valid(v) {
		return fmt.Errorf("%q is no fleet id, which has 26 letters and digits", v)
	}
	s.FleetID = v
	return nil
}

// Fewer connections than this leave none for readers; the database server has
// few hundred for everybody.
const minDatabaseConns, maxDatabaseConns = 3, 200

func databaseConns(s *Server, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < minDatabaseConns || n > maxDatabaseConns {
		return fmt.Errorf("%q is not within %d to %d", v, minDatabaseConns, maxDatabaseConns)
	}
	s.DatabaseConns = n
	return nil
}

func databaseURL(s *Server, v string) error {
	if v != "" && !strings.HasPrefix(v, "postgres://") && !strings.HasPrefix(v, "postgresql://") && !strings.Contains(v, "=") {
		return errors.New("is no address such as postgres://fuse:password@db.example:5432/fuse")
	}
	s.DatabaseURL = v
	return nil
}

// checkStore decides which store is meant.
func (s *Server) checkStore() []error {
	var errs []error
	switch {
	case s.Store == "" && s.DatabaseURL != "":
		s.Store = StorePostgres
	case s.Store == "":
		s.Store = StoreSQLite
	case s.Store == StorePostgres && s.DatabaseURL == "":
		errs = append(errs, errors.New("--store=postgres (ORCH_STORE): needs --database-url-file or DATABASE_URL"))
	case s.Store != StorePostgres && s.DatabaseURL != "":
		errs = append(errs, fmt.Errorf("--store=%s (ORCH_STORE): contradicts --database-url (DATABASE_URL)", s.Store))
	}
	if s.FleetID != "" && s.Store != StoreMemory {
		errs = append(errs, errors.New("--fleet-id (ORCH_FLEET_ID): the fleet's id is in the store; only --store=memory takes one"))
	}
	if s.Store == StoreMemory {
		s.Warnings = append(s.Warnings, memoryWarning(s.FleetID))
	}
	return errs
}

func memoryWarning(fleetID string) string {
	const warning = "the state is kept in memory only (--store=memory): when this process ends, the hosts, keys and records are forgotten and "
	if fleetID == "" {
		return warning + "every VM that runs then is foreign to the next start; remove those with: fuse host purge HOST --fleet ID --yes"
	}
	return warning + "THE NEXT START WITH THIS --fleet-id DESTROYS EVERY VM that runs then"
}
