package keys

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/sqlite"
)

type journal interface {
	state.Journal
	state.Lease
}

func openStore(t *testing.T, j journal) *state.Store {
	t.Helper()
	store, err := state.Open(t.Context(), state.Config{Journal: j, Lease: j, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func closeStore(t *testing.T, store *state.Store) {
	t.Helper()
	if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func setup(t *testing.T) (*Service, *state.Store) {
	t.Helper()
	store := openStore(t, memory.New(memory.Options{}))
	t.Cleanup(func() { closeStore(t, store) })
	return New(store, slog.New(slog.DiscardHandler)), store
}

func create(t *testing.T, s *Service, req CreateRequest) (fleet.APIKey, string) {
	t.Helper()
	req.Actor = fleet.ActorMaster
	key, text, err := s.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return key, text
}

func TestAKeyIsShownOnceAndKeptHashed(t *testing.T) {
	s, store := setup(t)
	key, text := create(t, s, CreateRequest{Label: "ci", Role: fleet.RoleUser})
	if key.Owner != key.ID || key.CreatedBy != fleet.ActorMaster || key.CreatedAt.IsZero() {
		t.Errorf("%+v", key)
	}
	secret := text[strings.LastIndex(text, "_")+1:]
	var everything bytes.Buffer
	rows := json.NewEncoder(&everything)
	err := store.View(func(tx *state.ReadTx) error {
		for _, k := range Documents.All(tx) {
			if err := rows.Encode(k); err != nil {
				return err
			}
		}
		return nil
	})
	events, eventsErr := store.Events(t.Context(), state.EventQuery{})
	if err := errors.Join(err, eventsErr, rows.Encode(events)); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(everything.String(), secret) || !strings.Contains(everything.String(), key.ID) {
		t.Errorf("the store holds the secret, or not the key: %s", everything.String())
	}
	if len(events) != 1 || events[0].Type != fleet.EventKeyCreated || events[0].Reason.Actor != fleet.ActorMaster {
		t.Errorf("events %+v", events)
	}
	other, _ := create(t, s, CreateRequest{Role: fleet.RoleUser, Owner: key.Owner})
	if other.Owner != key.ID || other.ID == key.ID {
		t.Errorf("a second key of one owner: %+v", other)
	}
}

func TestWhatAKeyMustBe(t *testing.T) {
	s, _ := setup(t)
	for name, req := range map[string]CreateRequest{
		"no role":       {},
		"master":        {Role: fleet.RoleMaster},
		"unknown role":  {Role: "root"},
		"owner master":  {Role: fleet.RoleUser, Owner: "master"},
		"owner text":    {Role: fleet.RoleUser, Owner: "a b"},
		"owner path":    {Role: fleet.RoleUser, Owner: "../x"},
		"owner NUL":     {Role: fleet.RoleUser, Owner: "a\x00"},
		"long owner":    {Role: fleet.RoleUser, Owner: strings.Repeat("a", 65)},
		"long label":    {Role: fleet.RoleUser, Label: strings.Repeat("a", 101)},
		"label newline": {Role: fleet.RoleUser, Label: "a\nb"},
		"label bytes":   {Role: fleet.RoleUser, Label: "a\xff"},
		"over already":  {Role: fleet.RoleUser, ExpiresAt: time.Now().Add(-time.Minute)},
		"too far":       {Role: fleet.RoleUser, ExpiresAt: time.Now().Add(MaxLife + time.Hour)},
	} {
		if _, text, err := s.Create(t.Context(), req); fleet.CodeOf(err) != fleet.CodeInvalidArgument || text != "" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("%d keys made, %v", len(list), err)
	}
}

// A revocation counts for the next request, whatever was asked before.
func TestRevokedAtOnce(t *testing.T) {
	s, store := setup(t)
	key, _ := create(t, s, CreateRequest{Role: fleet.RoleUser})
	for range 100 {
		if k, ok := s.Key(key.ID); !ok || !k.RevokedAt.IsZero() {
			t.Fatal("the key is not there")
		}
	}
	for range 2 { // the second changes nothing
		if err := s.Revoke(t.Context(), key.ID, "user:admin"); err != nil {
			t.Fatal(err)
		}
		k, _ := s.Key(key.ID)
		if why, ok := k.Usable(time.Now()); ok || why != "revoked" || k.RevokedBy != "user:admin" {
			t.Fatalf("%+v", k)
		}
	}
	if err := s.Revoke(t.Context(), "ak_none", "x"); !errors.Is(err, fleet.ErrKeyNotFound) || fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("an unknown key: %v", err)
	}
	events, err := store.Events(t.Context(), state.EventQuery{})
	if err != nil || len(events) != 2 || events[1].Type != fleet.EventKeyRevoked || events[1].Reason.Actor != "user:admin" {
		t.Errorf("events %+v, %v", events, err)
	}
}

// The same on SQLite: what was made and revoked is so after a restart. The
// conformance suite of the stores holds PostgreSQL to the same collections.
func TestKeysOutliveAServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fuse.db")
	open := func() (*Service, *state.Store) {
		store := openStore(t, sqlite.New(sqlite.Config{Path: path}))
		return New(store, slog.New(slog.DiscardHandler)), store
	}
	s, store := open()
	stays, text := create(t, s, CreateRequest{Role: fleet.RoleOperator, Label: "stays", ExpiresAt: time.Now().Add(time.Hour)})
	goes, goesText := create(t, s, CreateRequest{Role: fleet.RoleUser})
	if err := s.Revoke(t.Context(), goes.ID, "x"); err != nil {
		t.Fatal(err)
	}
	closeStore(t, store)
	s, store = open()
	defer closeStore(t, store)
	gate := auth.New(auth.Config{Token: "t", Keys: s})
	login := httptest.NewRequest(http.MethodPost, "/login", nil)
	if _, err := gate.Login(login, goesText); fleet.CodeOf(err) != fleet.CodeUnauthorized {
		t.Errorf("the revoked key: %v", err)
	}
	if _, err := gate.Login(login, text); err != nil {
		t.Errorf("the other: %v", err)
	}
	got, err := s.Get(stays.ID)
	if err != nil || got.Label != "stays" || !got.ExpiresAt.Equal(stays.ExpiresAt) || got.Role != fleet.RoleOperator {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestKeysAreBounded(t *testing.T) {
	s, store := setup(t)
	fill := func(revoked time.Time) {
		for from := 0; from < MaxKeys; from += 500 {
			if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
				for i := from; i < from+500; i++ {
					k := fleet.APIKey{ID: fmt.Sprintf("ak_%05d", i), Role: fleet.RoleUser, RevokedAt: revoked, CreatedAt: time.Unix(int64(i), 0)}
					if err := Documents.Put(tx, k.ID, &k); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(time.Time{})
	if _, _, err := s.Create(t.Context(), CreateRequest{Role: fleet.RoleUser}); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("one too many: %v", err)
	}
	fill(time.Unix(1, 0))
	create(t, s, CreateRequest{Role: fleet.RoleUser})
	if _, ok := s.Key("ak_00000"); ok {
		t.Error("the oldest revoked key did not make room")
	}
	if list, err := s.List(); err != nil || len(list) != MaxKeys || list[0].CreatedAt.Before(list[1].CreatedAt) {
		t.Errorf("%d keys, %v", len(list), err)
	}
}

// However often a key is used, that is written once an hour.
func TestLastUsedIsCoarse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStore(t, memory.New(memory.Options{}))
		defer closeStore(t, store)
		s := New(store, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		key, _ := create(t, s, CreateRequest{Role: fleet.RoleUser})
		use := func() time.Time {
			for range 10 * queuedUses {
				s.Used(key.ID)
			}
			s.Used("ak_none")
			synctest.Wait()
			k, _ := s.Key(key.ID)
			return k.LastUsedAt
		}
		first := use()
		if first.IsZero() {
			t.Fatal("the use was not noted")
		}
		before, _ := store.Head()
		<-time.After(30 * time.Minute)
		if at := use(); !at.Equal(first) {
			t.Errorf("noted again after half an hour: %v", at)
		}
		if after, _ := store.Head(); after != before {
			t.Errorf("%d writes for uses within the hour", after-before)
		}
		<-time.After(31 * time.Minute)
		if at := use(); !at.After(first) {
			t.Errorf("not noted after an hour: %v", at)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
