// Program bbolt-tool reads, checks, writes and changes database files with etcd's own bbolt, for the tests of ringd's.
//
//	bbolt-tool describe FILE        checks a file and prints what its buckets hold
//	bbolt-tool write FILE SEED      makes a file by many transactions that put and delete
//	bbolt-tool change FILE SEED     goes on in a file: deletes most of it, and puts
package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand"
	"os"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	command, path := arguments[0], arguments[1]
	if command == "describe" {
		return describe(path)
	}
	seed, err := strconv.ParseInt(arguments[2], 10, 64)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewSource(seed))
	switch command {
	case "write":
		return write(path, random)
	case "change":
		return change(path, random)
	}
	return fmt.Errorf("unknown command %q", command)
}

func describe(path string) error {
	database, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		return err
	}
	defer database.Close()
	return database.View(func(transaction *bolt.Tx) error {
		failed := 0
		for err := range transaction.Check() {
			fmt.Fprintln(os.Stderr, err)
			failed++
		}
		if failed > 0 {
			return fmt.Errorf("%d errors in %s", failed, path)
		}
		return transaction.ForEach(func(name []byte, bucket *bolt.Bucket) error {
			return describeBucket(string(name), bucket)
		})
	})
}

func describeBucket(path string, bucket *bolt.Bucket) error {
	count, sum := 0, uint32(0)
	add := func(bytes []byte) {
		sum = crc32.Update(sum, castagnoli, binary.BigEndian.AppendUint32(nil, uint32(len(bytes))))
		sum = crc32.Update(sum, castagnoli, bytes)
	}
	err := bucket.ForEach(func(key, value []byte) error {
		count++
		add(key)
		add(value)
		if value == nil {
			return describeBucket(path+"/"+string(key), bucket.Bucket(key))
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("%x %d %d %08x\n", path, bucket.Sequence(), count, sum)
	return nil
}

func write(path string, random *rand.Rand) error {
	options := &bolt.Options{NoSync: true, NoFreelistSync: random.Intn(2) == 0, PageSize: 4096 << random.Intn(3)}
	database, err := bolt.Open(path, 0o600, options)
	if err != nil {
		return err
	}
	for round := 0; round < 30; round++ {
		if err := database.Update(func(transaction *bolt.Tx) error { return mix(transaction, random) }); err != nil {
			return err
		}
	}
	return database.Close()
}

// mix puts and deletes, in buckets that are large, small, nested and in one with long keys.
func mix(transaction *bolt.Tx, random *rand.Rand) error {
	for _, name := range []string{"key", "meta", "nested", "long"} {
		bucket, err := transaction.CreateBucketIfNotExists([]byte(name))
		if err != nil {
			return err
		}
		switch name {
		case "key":
			err = fill(bucket, random, 400, 17, 2000)
		case "meta":
			err = fill(bucket, random, 1, 4, 10)
		case "long":
			err = fill(bucket, random, 3, 5000, 100_000)
		case "nested":
			for at := 0; at < 3 && err == nil; at++ {
				var inner *bolt.Bucket
				if inner, err = bucket.CreateBucketIfNotExists([]byte{byte(at)}); err == nil {
					_ = inner.SetSequence(uint64(random.Intn(9)))
					err = fill(inner, random, at*20, 6, 30)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func fill(bucket *bolt.Bucket, random *rand.Rand, count, keyLength, valueLength int) error {
	for at := 0; at < count; at++ {
		key := make([]byte, keyLength)
		binary.BigEndian.PutUint32(key, uint32(random.Intn(8000)))
		if random.Intn(3) == 0 {
			if err := bucket.Delete(key); err != nil {
				return err
			}
			continue
		}
		value := make([]byte, random.Intn(valueLength))
		for place := range value {
			value[place] = byte(place * at)
		}
		if err := bucket.Put(key, value); err != nil {
			return err
		}
	}
	return nil
}

// change deletes most keys, which makes bbolt join pages, and puts again.
func change(path string, random *rand.Rand) error {
	database, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: random.Intn(2) == 0})
	if err != nil {
		return err
	}
	for round := 0; round < 4; round++ {
		err := database.Update(func(transaction *bolt.Tx) error {
			err := transaction.ForEach(func(_ []byte, bucket *bolt.Bucket) error {
				cursor := bucket.Cursor()
				for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
					if value != nil && random.Intn(10) < 7 {
						if err := cursor.Delete(); err != nil {
							return err
						}
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			return mix(transaction, random)
		})
		if err != nil {
			return err
		}
	}
	return database.Close()
}
