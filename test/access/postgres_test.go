// Package access holds API keys and sealed values to their promises on a real
// PostgreSQL; on SQLite and in memory their own packages do.
package access

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/keys"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/rekey"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/postgres"
	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
)

// with opens the store as a server does, and gives it up again.
func with(t *testing.T, url string, fn func(*state.Store)) {
	t.Helper()
	j := postgres.New(postgres.Config{URL: url, Lease: lease.Timing{Period: time.Minute}})
	store, err := state.Open(t.Context(), state.Config{Journal: j, Lease: j, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	fn(store)
}

func key(t *testing.T, digit string) secrets.Key {
	t.Helper()
	k, err := secrets.ParseKey(strings.Repeat(digit, 64))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// What one server does to keys and sealed values is so for the next.
func TestOnPostgreSQL(t *testing.T) {
	url := pgtest.New(t, pgtest.Options{}).Database(t)
	quiet := slog.New(slog.DiscardHandler)
	columns := []rekey.Column{rekey.HostColumn("host_token")}
	before, after := key(t, "a"), key(t, "b")
	var stays, goes string
	with(t, url, func(store *state.Store) {
		s := keys.New(store, quiet)
		var err error
		if _, stays, err = s.Create(t.Context(), keys.CreateRequest{Role: fleet.RoleUser, Owner: "team", Label: "ci", ExpiresAt: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		gone, text, err := s.Create(t.Context(), keys.CreateRequest{Role: fleet.RoleAdmin})
		if err != nil {
			t.Fatal(err)
		}
		goes = text
		if err := s.Revoke(t.Context(), gone.ID, fleet.ActorMaster); err != nil {
			t.Fatal(err)
		}
		sealed, err := secrets.NewSealer(before).Seal("host_token", "h1", []byte("token of h1"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
			return tx.PutHost(fleet.Host{ID: "h1", State: fleet.HostActive, TokenSealed: sealed})
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := rekey.Check(t.Context(), store, secrets.NewSealer(before), columns); err != nil {
			t.Error(err)
		}
	})
	with(t, url, func(store *state.Store) {
		gate := auth.New(auth.Config{Token: "t", Keys: keys.New(store, quiet)})
		login := httptest.NewRequest(http.MethodPost, "/login", nil)
		if _, err := gate.Login(login, stays); err != nil {
			t.Errorf("the key: %v", err)
		}
		if _, err := gate.Login(login, goes); fleet.CodeOf(err) != fleet.CodeUnauthorized || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("the revoked key: %v", err)
		}
		if _, err := rekey.Check(t.Context(), store, secrets.NewSealer(after), columns); err == nil {
			t.Error("another key is taken")
		}
		if n, err := rekey.Run(t.Context(), store, secrets.NewSealer(after, before), columns, func(int) {}); err != nil || n != 1 {
			t.Errorf("rekey: %d, %v", n, err)
		}
	})
	with(t, url, func(store *state.Store) {
		if _, err := rekey.Check(t.Context(), store, secrets.NewSealer(after), columns); err != nil {
			t.Errorf("after the rekey: %v", err)
		}
		if err := store.View(func(tx *state.ReadTx) error {
			h, _ := tx.Hosts().Get("h1")
			plain, err := secrets.NewSealer(after).Open("host_token", "h1", h.TokenSealed)
			if string(plain) != "token of h1" {
				t.Errorf("the token opens to %q", plain)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}
