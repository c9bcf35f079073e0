package identity

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	first, err := Load(dir)
	if err != nil || len(first.RegistryID) != 26 || first.BootID == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := Load(dir); err != nil || again != first {
		t.Errorf("the second time %+v, %v", again, err)
	}
	path := filepath.Join(dir, "registry.json")
	for name, doc := range map[string]string{"damaged": "{", "empty": "{}", "of another kind": "[]"} {
		if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		if id, err := Load(dir); err == nil {
			t.Errorf("%s: %+v", name, id)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "registry.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if id, err := Load(dir); err == nil {
		t.Errorf("a registry that lost its id was given %s", id.RegistryID)
	}
}
