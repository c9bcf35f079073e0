package webhooks

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/internal/webhooks"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// server serves the routes over the real service, state and receiver.
func server(t *testing.T) (client.Webhooks, *httptest.Server, *state.Store) {
	t.Helper()
	store, sealer := storetest.OpenSealed(t)
	svc, err := webhooks.New(webhooks.Config{Store: store, Sealer: sealer, Logger: slog.New(slog.DiscardHandler), AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	router := web.NewRouter(Routes(svc, idempotency.New(store)))
	ts := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, hr *http.Request) {
		p, param := router.Match(hr.URL)
		payload, err := io.ReadAll(hr.Body)
		if err != nil {
			t.Error(err)
		}
		r := &web.Request{
			Request: hr.WithContext(auth.With(hr.Context(), auth.Master)), Route: p.Methods[hr.Method], Param: param, Payload: payload,
			Log: slog.New(slog.DiscardHandler),
		}
		if err := r.Route.Handle(&web.Writer{ResponseWriter: rw}, r); err != nil {
			web.WriteJSON(rw, map[fleet.Code]int{fleet.CodeInvalidArgument: 400, fleet.CodeNotFound: 404, fleet.CodeConflict: 409}[fleet.CodeOf(err)],
				gen.ErrorBody{Error: gen.ErrorInfo{Code: string(fleet.CodeOf(err)), Message: err.Error()}})
		}
	}))
	t.Cleanup(ts.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	api, err := client.New(ts.URL, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return client.NewWebhooks(api), ts, store
}

// A webhook's life over the wire, with a real receiver.
func TestLifeOfAWebhook(t *testing.T) {
	hooks, _, store := server(t)
	arrived := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			Type string
			Data struct {
				VMID string `json:"vm_id"`
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil || r.Header.Get("webhook-id") == "" || r.Header.Get("webhook-signature") == "" {
			t.Errorf("message %v with %v", err, r.Header)
		}
		arrived <- m.Type + " " + m.Data.VMID
	}))
	defer receiver.Close()
	ctx := t.Context()
	h, err := hooks.Create(ctx, gen.CreateWebhook{URL: receiver.URL, Filter: gen.EventFilter{Types: []string{"vm.*"}}})
	if err != nil || !strings.HasPrefix(h.Secret, "whsec_") || h.Owner != "master" {
		t.Fatal(h, err)
	}
	if got, err := hooks.Get(ctx, h.ID); err != nil || got.Secret != "" || got.URL != receiver.URL {
		t.Error(got, err)
	}
	if d, err := hooks.Test(ctx, h.ID); err != nil || d.State != "delivered" || <-arrived != "ping " {
		t.Error(d, err)
	}
	if _, err := store.Update(ctx, func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-a", UID: "u", Type: fleet.EventVMRunning})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := <-arrived; got != "vm.running fuse-a" {
		t.Error(got)
	}
	var list gen.DeliveryList
	testkit.Eventually(t, time.Minute, "the delivery is recorded", func() bool {
		list, err = hooks.Deliveries(ctx, h.ID, gen.ListDeliveriesParams{State: new("delivered")})
		return err == nil && len(list.Deliveries) == 2
	})
	if d, err := hooks.Resend(ctx, h.ID, list.Deliveries[0].ID); err != nil || d.State != "pending" {
		t.Error(d, err)
	}
	<-arrived
	if got, err := hooks.Rotate(ctx, h.ID, new(60)); err != nil || got.Secret == "" || got.Secret == h.Secret || got.PreviousSecretUntil.IsZero() {
		t.Error(got, err)
	}
	if got, err := hooks.Enable(ctx, h.ID, false); err != nil || got.Disabled == nil || got.Disabled.Actor != "user:master" {
		t.Error(got, err)
	}
	if _, err := hooks.Resend(ctx, h.ID, list.Deliveries[0].ID); client.CodeOf(err) != "conflict" {
		t.Error(err)
	}
	if got, err := hooks.Enable(ctx, h.ID, true); err != nil || got.Disabled != nil {
		t.Error(got, err)
	}
	if got, err := hooks.Change(ctx, h.ID, gen.ChangeWebhook{Description: new("x"), Filter: &gen.EventFilter{VM: "fuse-b"}}); err != nil ||
		got.Description != "x" || got.Filter.VM != "fuse-b" || len(got.Filter.Types) != 0 || got.URL != receiver.URL {
		t.Error(got, err)
	}
	if all, err := hooks.List(ctx, gen.ListWebhooksParams{}); err != nil || len(all.Webhooks) != 1 || all.NextCursor != "" {
		t.Error(all, err)
	}
	if err := hooks.Delete(ctx, h.ID); err != nil {
		t.Error(err)
	}
	if _, err := hooks.Get(ctx, h.ID); client.CodeOf(err) != "not_found" {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	hooks, ts, _ := server(t)
	ctx := t.Context()
	h, err := hooks.Create(ctx, gen.CreateWebhook{URL: "https://receiver.example"})
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"no url":           second(hooks.Create(ctx, gen.CreateWebhook{})),
		"no such type":     second(hooks.Create(ctx, gen.CreateWebhook{URL: "https://a.example", Filter: gen.EventFilter{Types: []string{"VM"}}})),
		"a misspelt type":  second(hooks.Create(ctx, gen.CreateWebhook{URL: "https://a.example", Filter: gen.EventFilter{Types: []string{"vm.*", "vm.runing"}}})),
		"a changed type":   second(hooks.Change(ctx, h.ID, gen.ChangeWebhook{Filter: &gen.EventFilter{Types: []string{"vms.*"}}})),
		"a bad secret":     second(hooks.Create(ctx, gen.CreateWebhook{URL: "https://a.example", Secret: "abc"})),
		"resend what":      second(hooks.Resend(ctx, h.ID, "")),
		"too long overlap": second(hooks.Rotate(ctx, h.ID, new(8*86400))),
		"less than none":   second(hooks.Rotate(ctx, h.ID, new(-1))),
		"no such state":    second(hooks.Deliveries(ctx, h.ID, gen.ListDeliveriesParams{State: new("lost")})),
		"a long text":      second(hooks.Change(ctx, h.ID, gen.ChangeWebhook{Description: new(strings.Repeat("x", 300))})),
	} {
		if client.CodeOf(err) != "invalid_argument" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"get": second(hooks.Get(ctx, "wh_none")), "test": second(hooks.Test(ctx, "wh_none")), "enable": second(hooks.Enable(ctx, "wh_none", true)),
		"rotate": second(hooks.Rotate(ctx, "wh_none", nil)), "deliveries": second(hooks.Deliveries(ctx, "wh_none", gen.ListDeliveriesParams{})),
		"delete": hooks.Delete(ctx, "wh_none"),
	} {
		if client.CodeOf(err) != "not_found" {
			t.Errorf("%s: %v", name, err)
		}
	}
	resp, err := http.Post(ts.URL+"/v1/webhooks/"+h.ID+"?action=explode", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("unknown action: %d", resp.StatusCode)
	}
}

func second[T any](_ T, err error) error { return err }
