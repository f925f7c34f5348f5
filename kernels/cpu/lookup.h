// The drafter that copies, as localdflash/engine/lookup.py has it: the same drafts for the same calls.
//
// Of every place in the text the map knows the newest one that ends with the same one, two or three tokens; each place
// knows the one before it. So a token is appended, and taken away again, in constant time.
#pragma once
#include <stdint.h>

#include <unordered_map>
#include <vector>

namespace ldf {

// Tokens, each with the confidence that it is right if those before it are.
struct Nodes {
  std::vector<int32_t> tokens;
  std::vector<double> confidence;

  int size() const { return static_cast<int>(tokens.size()); }

  void clear() {
    tokens.clear();
    confidence.clear();
  }
};

class Lookup {
 public:
  static constexpr int BREAK = -1;  // between documents

  // Begins anew with documents, each of them ended by BREAK.
  void start(const int32_t* documents, int count) {
    text_.clear();
    newest_.clear();
    for (auto& earlier : earlier_) earlier.clear();
    copying_ = NOWHERE;
    misses_ = 0;
    append(documents, count);
    base_ = size();
  }

  int observed() const { return size() - base_; }

  const int32_t* observed_ids() const { return text_.data() + base_; }

  void append(const int32_t* ids, int count) {
    for (int i = 0; i < count; i++) {
      text_.push_back(ids[i]);
      for (int gram = 0; gram < GRAM; gram++) {
        const int place = size() - 1;
        int before = NOWHERE;
        if (gram <= place) {
          auto found = newest_.emplace(key(gram, place), place);
          if (!found.second) {
            before = found.first->second;
            found.first->second = place;
          }
        }
        earlier_[gram].push_back(before);
      }
    }
  }

  // Forgets all that was observed from `length` on.
  void rollback(int length) {
    while (size() > base_ + length) {
      const int place = size() - 1;
      for (int gram = 0; gram < GRAM; gram++) {
        const int before = earlier_[gram].back();
        earlier_[gram].pop_back();
        if (gram > place) continue;
        if (before == NOWHERE) {
          newest_.erase(key(gram, place));
        } else {
          newest_[key(gram, place)] = before;
        }
      }
      text_.pop_back();
    }
    copying_ = NOWHERE;
  }

  void propose(int32_t anchor, int limit, Nodes* out) {
    out->clear();
    int agreement = 0;
    const int place = find(anchor, &agreement);
    keep_place(agreement >= PICKED_UP ? place : NOWHERE);
    if (place == NOWHERE) return;
    continuation(place, anchor, limit < LONGEST_DRAFT ? limit : LONGEST_DRAFT, &out->tokens);
    for (int right = 0; right < out->size(); right++) {
      out->confidence.push_back((agreement + right) / (agreement + right + 2.0));
    }
  }

 private:
  static constexpr int NOWHERE = -1;
  static constexpr int GRAM = 3, CANDIDATES = 8, LONGEST = 32, PICKED_UP = 3, PATIENCE = 8, LONGEST_DRAFT = 64;
  static constexpr int BEHIND = 4, AHEAD = 12;

  // One to three tokens: gram + 1 of them, the last one given.
  struct Key {
    int32_t gram, first, second, last;
    bool operator==(const Key& other) const {
      return gram == other.gram && first == other.first && second == other.second && last == other.last;
    }
  };

  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t mixed = static_cast<uint32_t>(key.last) * 0x9e3779b97f4a7c15u + static_cast<uint32_t>(key.gram);
      mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u + static_cast<uint32_t>(key.second);
      mixed = (mixed ^ mixed >> 32) * 0x94d049bb133111ebu + static_cast<uint32_t>(key.first);
      return mixed ^ mixed >> 31;
    }
  };

  int size() const { return static_cast<int>(text_.size()); }

  Key key(int gram, int place) const { return key(gram, place, text_[place]); }

  // Of a token at a place, and those before it.
  Key key(int gram, int place, int32_t last) const {
    return {gram, gram > 1 ? text_[place - 2] : 0, gram > 0 ? text_[place - 1] : 0, last};
  }

  int newest(int gram, int32_t anchor) const {
    if (gram > size()) return NOWHERE;
    const auto found = newest_.find(key(gram, size(), anchor));
    return found == newest_.end() ? NOWHERE : found->second;
  }

  // An earlier place of the anchor to go on from, and the tokens that agree there.
  int find(int32_t anchor, int* agreement) const {
    int place = newest(2, anchor);
    if (place != NOWHERE) return longest(place, 2, agreement);
    place = picked_up(anchor);
    if (place != NOWHERE) {
      *agreement = PICKED_UP;
      return place;
    }
    for (int gram = 1; gram >= 0; gram--) {
      place = newest(gram, anchor);
      if (place != NOWHERE) return longest(place, gram, agreement);
    }
    return NOWHERE;
  }

  // Of the newest places where gram + 1 tokens agree, the one where most do.
  int longest(int place, int gram, int* agreement) const {
    int best = place, most = 0;
    for (int tried = 0; tried < CANDIDATES && place != NOWHERE; tried++, place = earlier_[gram][place]) {
      int agree = gram + 1;
      while (agree < LONGEST && place - agree >= 0 && text_[place - agree] == text_[size() - agree]) agree++;
      if (agree > most) {
        best = place;
        most = agree;
      }
    }
    *agreement = most;
    return best;
  }

  // The place of the anchor in the passage that was being copied, nearest to where it is expected.
  int picked_up(int32_t anchor) const {
    if (copying_ == NOWHERE) return NOWHERE;
    const int expected = size() - copying_;
    for (int distance = 0; distance <= AHEAD; distance++) {
      for (const int place : {expected + distance, expected - distance}) {
        if (place >= 0 && place < size() && text_[place] == anchor && expected - place <= BEHIND) return place;
      }
    }
    return NOWHERE;
  }

  void keep_place(int place) {
    if (place != NOWHERE) {
      copying_ = size() - place;
      misses_ = 0;
    } else if (++misses_ > PATIENCE) {
      copying_ = NOWHERE;
    }
  }

  // What followed a place, up to the end of its document; a text that runs into itself repeats.
  void continuation(int place, int32_t anchor, int most, std::vector<int32_t>* tokens) const {
    for (int at = place + 1; at < size() && tokens->size() < static_cast<size_t>(most); at++) {
      if (text_[at] == BREAK) return;
      tokens->push_back(text_[at]);
    }
    if (tokens->size() < static_cast<size_t>(most)) tokens->push_back(anchor);
    const size_t period = tokens->size();
    while (tokens->size() < static_cast<size_t>(most)) tokens->push_back((*tokens)[tokens->size() - period]);
  }

  std::vector<int32_t> text_;
  std::vector<int> earlier_[GRAM];  // by place: the place before it with the same tokens
  std::unordered_map<Key, int, Hash> newest_;
  int base_ = 0;             // tokens of documents
  int copying_ = NOWHERE;    // from a place in the sequence back to the passage that it copies
  int misses_ = 0;           // proposals without a place
};

}  // namespace ldf
