// Data threads of one compute thread, for objects in files: what data tasks of the engine are for objects in a device.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

class DataThreads {
 public:
  ~DataThreads() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      ends_ = true;
    }
    has_job_.notify_all();
    for (std::thread &thread : threads_) thread.join();
  }

  // Runs a job on a thread; at most `limit` run at once.
  void submit(unsigned limit, std::function<void()> job) {
    std::lock_guard<std::mutex> guard(mutex_);
    limit_ = limit;
    jobs_.push_back(std::move(job));
    while (threads_.size() < limit) threads_.emplace_back([this] { serve(); });
    has_job_.notify_one();
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> guard(mutex_);
    for (;;) {
      has_job_.wait(guard, [this] { return ends_ || (!jobs_.empty() && running_ < limit_); });
      if (jobs_.empty()) return;
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      running_++;
      guard.unlock();
      job();
      guard.lock();
      running_--;
      has_job_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable has_job_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  unsigned limit_ = 1;
  unsigned running_ = 0;
  bool ends_ = false;
};
